"""The web page of `whence serve`: explain photos, texts and what language models write.

`service` and `language` compute and `views` renders HTML, all without Gradio. `page` lays out the
tabs: `classifier_tab` with its `handlers`, `language_tab` with its `language_handlers`, both of the
pieces in `panel`. `request_filter` refuses requests before Gradio sees them. The
browser draws overlays itself (`static/*.js`), so that opacity, colours and thresholds change
without a request.
"""
