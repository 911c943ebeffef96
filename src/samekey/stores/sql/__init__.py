"""The SQL backends: texts per database, plans shared by all of them."""
