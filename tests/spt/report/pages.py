"""Pages as a test reads them: elements, attributes and text, held to be well-formed on the way."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link"}


@dataclass
class Node:
    """An element: its tag, attributes, children in order (text as str), and its parent."""

    tag: str
    attributes: dict
    parent: "Node | None" = None
    children: list = field(default_factory=list)

    def walk(self):
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def find(self, tag, **attributes):
        """All elements below with this tag and these attributes."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            node
            for node in self.walk()
            if node.tag == tag and all(node.attributes.get(name) == value for name, value in wanted.items())
        ]

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def above(self):
        """The elements that this one stands in, itself first."""
        node = self
        while node is not None:
            yield node
            node = node.parent

    def classes(self):
        return (self.attributes.get("class") or "").split()


class _Parser(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.here = Node("root", {})

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        node = Node(tag, dict(attrs), self.here)
        self.here.children.append(node)
        if tag not in VOID:
            self.here = node

    def handle_startendtag(self, tag, attrs):
        self.here.children.append(Node(tag, dict(attrs), self.here))

    def handle_endtag(self, tag):
        assert self.here.tag == tag, f"</{tag}> closes <{self.here.tag}>"
        self.here = self.here.parent

    def handle_data(self, data):
        self.here.children.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def parse(text):
    """The root of a page; an error where an element is not closed in its turn."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.here is parser.root, f"<{parser.here.tag}> is not closed"
    return parser.root
