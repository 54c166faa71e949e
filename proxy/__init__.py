"""The server: hosts the policies on the event loop; sockets, files and metrics live here."""
