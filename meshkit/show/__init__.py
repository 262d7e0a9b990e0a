"""`meshkit schedule`: words.py reads what is asked, examine.py works it out, draw.py draws the grid."""
