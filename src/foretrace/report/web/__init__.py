"""Scripts and styles that reports and the served page share; `page.document` reads them."""
