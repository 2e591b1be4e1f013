"""Sphinx's configuration of the guide. docs/site/build.py adds what depends on the build: places, version, words."""
project = "FlashLadder"
author = "the authors of FlashLadder"
html_title = "FlashLadder"
extensions = ["myst_parser", "breathe", "docs.site.extension"]
exclude_patterns = ["**.html"]  # listings, which pages take in whole
highlight_language = "none"     # indented lines are commands and formulas
smartquotes = False             # --all is no dash

myst_enable_extensions = ["dollarmath", "attrs_block", "attrs_inline", "alert"]
myst_dmath_allow_space = False  # "$5 and $6" are no formula
myst_dmath_double_inline = True
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": None}
html_math_renderer = "mathml"

breathe_default_project = "flashladder"
breathe_show_include = False
# Each header declares its namespaces anew; Doxygen sees to it that all else is documented once. And code in a text may
# leave something out in words.
suppress_warnings = ["duplicate_declaration.cpp", "misc.highlighting_failure"]
cpp_id_attributes = ["__host__", "__device__", "__global__", "__forceinline__"]

html_theme = "furo"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark-colorblind"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_show_search_summary = False  # would read pages with fetch(), which files cannot
html_use_index = False            # the search finds every name
