"""What a reader is shown of a program: profiles of compiled programs and of dumps, as tables and as a web page."""
