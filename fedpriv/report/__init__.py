"""What a run tells the people who answer for it.

`budget` is the signed statement that a site makes about its own spending. `html` turns a run
directory into one page. Neither matplotlib nor jinja2 is loaded before a page is written.
"""
