"""Tables: rows of files and from Python for every task, the columns that a task reads, and rows that are held out."""
