"""Files that are named by a URL: s3://, gs://, hf://, hdfs://, https://, through fsspec."""

from .place import Entry, Location, Remote, local_copy, location_of
from .range_file import BLOCK
from .requests import RemoteError, take_retries

__all__ = ["BLOCK", "Entry", "Location", "Remote", "RemoteError", "local_copy", "location_of", "take_retries"]
