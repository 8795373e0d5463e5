"""Folders, zip files and shards of photos; photos that a caller passes.

    source.py    the files of a folder, a zip file or shards, by name
    classes.py   which of them are images, and of which class
    decode.py    how an image file becomes pixels
    read.py      all of it together: a data set for a run, or photos for a classifier
    given.py     photos as objects, such as bytes or Pillow images, by the same way

`gradmix.data.tasks` splits the data set into tasks.
"""
