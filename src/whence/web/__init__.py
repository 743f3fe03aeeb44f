"""The page: look at a photo or a text, compare methods, check whether they are faithful.

`desk` computes and `views` writes HTML, both without Gradio; `page` lays them out with it; `guard`
stands before it all. The browser draws overlays itself (`static/page.js`), so that opacity, colours
and thresholds change without a request.
"""
