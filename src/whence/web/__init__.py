"""The web page of `whence serve`: explain photos, texts and what language models write.

`service` and `language` compute and `views` renders HTML, all without Gradio. `page` lays out the
components, and `handlers` handles their events; `language_tab` and `language_handlers` do so for
language models. `request_filter` refuses requests before Gradio sees them. The
browser draws overlays itself (`static/*.js`), so that opacity, colours and thresholds change
without a request.
"""
