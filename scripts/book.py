#!/usr/bin/env python3
"""Checks the links of the book, and makes its pages ready for mdBook.

    scripts/book.py check             checks all links of docs, README.md and CHANGELOG.md, and that every page is in docs/SUMMARY.md once
    scripts/book.py built [FOLDER]    checks all links of the HTML that mdBook has built: target/book unless told otherwise
    scripts/book.py preprocess ...    a preprocessor of mdBook (docs/book.toml), by standard input and output: links that lead out of the
                                      book, as to a script, become the path of that file

`check` and `built` print what is wrong, and exit with 1; with 0 if nothing is.
"""

import html.parser
import json
import os
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs"
SUMMARY = BOOK / "SUMMARY.md"

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
# `[text](target)` and `![text](target "title")`; the text may hold brackets one level deep, as a picture in a link.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*)\]\(\s*<?((?:[^\s()<>]|\([^()]*\))*)>?(?:\s+\"[^\"]*\")?\s*\)")


def without_code(text):
    """Returns the text with blanks in place of code, so that everything keeps its place."""
    kept, fence, before_is_blank = [], None, True
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence is None and match:
            fence = match[1]
        elif fence is not None:
            if match and line.strip().startswith(fence):
                fence = None
        elif not (line.startswith("    ") and before_is_blank):
            kept.append(line)
            before_is_blank = not line.strip()
            continue
        kept.append(" " * len(line))
    return CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n".join(kept))


def slug(heading):
    """Returns the anchor of a heading, as GitHub and mdBook make it."""
    text = LINK.sub(lambda match: match[2], heading)
    text = re.sub(r"[`*]", "", text)
    return re.sub(r"\s", "-", "".join(sign for sign in text.lower() if sign.isalnum() or sign in "-_" or sign.isspace()))


def anchors(path):
    """Returns the anchors of the headings of a page."""
    found, counts, fence = set(), {}, None
    for line in path.read_text().split("\n"):
        match = FENCE.match(line)
        if match and (fence is None or line.strip().startswith(fence)):
            fence = match[1] if fence is None else None
        if fence is None and (match := HEADING.match(line)):
            anchor = slug(match[1])
            count = counts[anchor] = counts.get(anchor, -1) + 1
            found.add(f"{anchor}-{count}" if count else anchor)
    return found


def is_elsewhere(target):
    """Returns whether the parts of a link lead to another site."""
    return target.scheme in ("http", "https", "mailto") or target.netloc


def relative(path):
    return os.path.relpath(path, ROOT)


def pages():
    return sorted(BOOK.rglob("*.md"))


def wrong_links(path):
    """Yields every link of a page that leads nowhere."""
    text = without_code(path.read_text())
    for match in LINK.finditer(text):
        target = urllib.parse.urlsplit(match[3])
        if is_elsewhere(target):
            continue
        place = f"{relative(path)}:{text.count(chr(10), 0, match.start()) + 1}: ({match[3]})"
        file = path.parent / urllib.parse.unquote(target.path) if target.path else path
        if not match[3]:
            yield f"{place} is empty"
        elif not file.exists():
            yield f"{place} there is no such file"
        elif ROOT not in file.resolve().parents and file.resolve() != ROOT:
            yield f"{place} leads out of the repository"
        elif target.fragment and file.suffix == ".md" and target.fragment not in anchors(file):
            near = ", ".join(sorted(anchors(file)))
            yield f"{place} {relative(file)} has no such heading; it has: {near}"


def wrong_summary():
    """Yields every page that the summary does not list, or lists twice."""
    listed = [(BOOK / match[3]).resolve() for match in LINK.finditer(SUMMARY.read_text())]
    for page in pages():
        count = listed.count(page.resolve())
        if page != SUMMARY and count != 1:
            yield f"{relative(page)}: {'not' if count == 0 else f'{count} times'} in {relative(SUMMARY)}"


def check():
    files = [*pages(), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    return [*(line for path in files for line in wrong_links(path)), *wrong_summary()]


def path_instead(page, match):
    """Returns the replacement of a link on `page`, a path in the book: the link itself, or its text and the path of a file outside the book."""
    target = urllib.parse.urlsplit(match[3])
    if match[1] or is_elsewhere(target) or not target.path:
        return match[0]
    file = pathlib.Path(os.path.normpath(BOOK / pathlib.Path(page).parent / target.path))
    # mdBook copies what lies in the book, but a folder has no page, and the page of a README is the index of its folder.
    if BOOK in file.parents and not file.is_dir():
        return match[0].replace("README.md", "index.md")
    path, text = relative(file), match[2]
    return f"`{path}`" if text.strip("`") in (path, file.name) else f"{text} (`{path}`)"


def inside(page, text):
    """Returns the text of a page without links out of the book."""
    blank, made, end = without_code(text), [], 0
    for match in LINK.finditer(text):
        # In code there are no links.
        if blank[match.start()] == text[match.start()]:
            made += [text[end : match.start()], path_instead(page, match)]
            end = match.end()
    return "".join([*made, text[end:]])


def preprocess(items):
    for item in items:
        if isinstance(item, dict) and (chapter := item.get("Chapter")):
            if chapter.get("source_path"):
                chapter["content"] = inside(chapter["source_path"], chapter["content"])
            preprocess(chapter["sub_items"])


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page of HTML."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value)
            elif value and (name == "href" or name == "src"):
                self.links.append(value)


def built(folder):
    """Returns every link in the HTML below a folder that leads nowhere."""
    read = {path.resolve(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    wrong = [] if read else [f"{relative(folder)}: holds no page\n  hint: make book"]
    for path, page in read.items():
        # The page for addresses that do not exist names everything from the root of the site.
        for link in page.links if path.name != "404.html" else []:
            target = urllib.parse.urlsplit(link)
            if is_elsewhere(target):
                continue
            file = (path.parent / urllib.parse.unquote(target.path)).resolve() if target.path else path
            if not file.is_file():
                wrong.append(f"{relative(path)}: ({link}) there is no such file")
            elif target.fragment and file in read and urllib.parse.unquote(target.fragment) not in read[file].anchors:
                wrong.append(f"{relative(path)}: ({link}) {relative(file)} has no such anchor")
    return wrong


def main():
    match sys.argv[1:]:
        case ["check"]:
            wrong = check()
        case ["built", *folder]:
            wrong = built(pathlib.Path(*folder or [ROOT / "target/book"]).resolve())
        case ["preprocess", "supports", _]:
            return 0
        case ["preprocess"]:
            _, book = json.load(sys.stdin)
            preprocess(book["items"])
            json.dump(book, sys.stdout)
            return 0
        case _:
            sys.exit(__doc__)
    print("\n".join(wrong or ["all links lead somewhere"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
