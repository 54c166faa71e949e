"""What will this file do under that traffic? The other host of the policies: virtual time, no sockets."""
