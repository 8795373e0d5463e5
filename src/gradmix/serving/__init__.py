"""A model file as a web page and a small JSON API; needs the extra `gradmix[serve]`."""
