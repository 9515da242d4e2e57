"""How is the documentation built? ``make docs``; a warning fails the build."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import multint

project = "multint"
author = "The multint authors"
version = release = multint.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_custom_sections = ["Shapes"]
python_maximum_signature_line_length = 100
add_module_names = False

html_theme = "furo"
html_title = f"multint {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_math_renderer = "mathml"


def inline(translator, node):
    translator.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def displayed(translator, node):
    translator.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def mathml(node, as_block):
    tex = node.astext().strip().replace(r"\dots", r"\ldots")  # docutils has no \dots
    tex = re.sub(r"(\\(?:tilde|hat) ?\{?\w\}?)_", r"\1{}_", tex)  # and sets the index of an accented letter under it
    return tex2mathml(tex, as_block=as_block)


def absolute_values(app, what, name, obj, options, lines):
    # reST would take |h| for a substitution
    lines[:] = [re.sub(r"(?<!\\)\|(\w+)\|", r"\\|\1\\|", line) for line in lines]


def setup(app):
    # MathML needs no script from the network, so the pages read the same offline
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.connect("autodoc-process-docstring", absolute_values)
