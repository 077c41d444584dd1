"""The looks of the studio's pages: a style sheet over `report/page.css`, and one script."""
