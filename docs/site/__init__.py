"""Makes the guide, a static site: python3 -m docs.site.build, usually called as ./ladder docs."""
