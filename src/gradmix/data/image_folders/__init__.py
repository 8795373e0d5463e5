"""Images in folders by class: find them, decode them, make them a data set."""
