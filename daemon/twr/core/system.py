"""Numbers of the operating system that several parts have to keep to."""

import sys

UNIX_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""The longest path of a unix socket: sun_path less its closing NUL has 107 bytes on Linux, 103 on
macOS and the BSDs."""

NOTICE = 25
"""The log level of what is over: journald's notice, between info and warning."""
