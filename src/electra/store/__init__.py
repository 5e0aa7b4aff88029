"""URLs of object stores (s3://, gs://, any of fsspec) <-> files and folders on this disk with the same bytes.

`remote` talks to a store, `cache` brings what is there to this disk, `working` also takes back what was
written.
"""
