"""The web page of `whence serve`: explain a photo or a text, compare methods, measure faithfulness.

`service` computes and `views` renders HTML, both without Gradio. `page` lays out the components,
and `handlers` handles their events. `request_filter` refuses requests before Gradio sees them. The
browser draws overlays itself (`static/*.js`), so that opacity, colours and thresholds change
without a request.
"""
