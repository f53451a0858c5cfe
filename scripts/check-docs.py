#!/usr/bin/env python3
"""Checks the documentation: links, anchors, and that the book contains every page.

    scripts/check-docs.py                 the sources
    scripts/check-docs.py --book DIR      the pages that mdBook has built into DIR

Needs Python 3.8 or newer and nothing else. Prints what it checked, or each finding as FILE:LINE with the fix, and exits with 1.

- Every relative link of the checked files leads to a file or folder of the repository, and its anchor to a heading.
- Pages in docs/ link only to pages in docs/, since the built book contains nothing else. The exception is docs/repository.md,
  the list of files outside docs/: other pages link to its entries.
- docs/SUMMARY.md and docs/llms.txt list every page in docs/ once, and nothing else. Each line of llms.txt describes its page.
- Every relative link, image, script and style sheet of a built page exists, and its anchor is an id of that page.
"""

import difflib
import html.parser
import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
INDEX = DOCS / "llms.txt"
# The only page in docs/ whose links may leave docs/.
REPOSITORY_PAGE = DOCS / "repository.md"
NAMED = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md"]

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
INLINE_LINK = re.compile(r"\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+[\"'(][^)]*)?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE)
HTML_LINK = re.compile(r"<[a-zA-Z][^>]*?\s(?:href|src)\s*=\s*[\"']([^\"']*)[\"']")
HTML_ANCHOR = re.compile(r"<[a-zA-Z][^>]*?\s(?:id|name)\s*=\s*[\"']([^\"']+)[\"']")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
EXTERNAL = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:|^//")

findings = []


def report(path, line, problem, fix):
    name = path.relative_to(ROOT) if ROOT in path.parents else path
    findings.append((str(name), line, f"{problem}; {fix}"))


def blank(text):
    """Returns the text with its characters replaced by spaces, and its lines kept."""
    return re.sub(r"[^\n]", " ", text)


class Page:
    """A Markdown file: its text without code blocks, and its anchors."""

    def __init__(self, path):
        self.path = path
        fence, lines = None, []
        for line in path.read_text(encoding="utf-8").split("\n"):
            mark = FENCE.match(line)
            if fence is None and mark:
                fence, line = mark.group(1), ""
            elif fence is not None:
                if mark and mark.group(1)[0] == fence[0] and len(mark.group(1)) >= len(fence) and not line.strip(" `~"):
                    fence = None
                line = ""
            lines.append(line)
        if fence is not None:
            report(path, len(lines), "a code block has no end", f"add a line {fence}")
        self.text = "\n".join(lines)
        self.anchors = set(HTML_ANCHOR.findall(self.text))
        seen = {}
        for line in lines:
            heading = HEADING.match(line)
            if heading:
                slug = slugify(heading.group(1))
                count = seen.get(slug, 0)
                seen[slug] = count + 1
                self.anchors.add(slug if count == 0 else f"{slug}-{count}")

    def links(self):
        """Yields line and target of every link outside of code."""
        text = CODE.sub(lambda code: blank(code.group()), self.text)
        for pattern in (INLINE_LINK, DEFINITION, HTML_LINK):
            for match in pattern.finditer(text):
                yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def slugify(heading):
    """Returns the anchor that GitHub and mdBook give to a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^>]*>", "", text).replace("`", "").strip().lower()
    return "".join("-" if c.isspace() else c for c in text if c.isalnum() or c.isspace() or c in "-_")


pages = {}


def page(path):
    if path not in pages:
        pages[path] = Page(path)
    return pages[path]


def nearest(word, words):
    close = difflib.get_close_matches(word, sorted(words), 1, 0.5)
    return f"did you mean {close[0]}?" if close else f"it has: {', '.join(sorted(words)) or 'none'}"


def check_link(source, line, target):
    """Checks one link. Returns whether it is relative."""
    if not target or EXTERNAL.match(target):
        return False
    name, _, anchor = target.partition("#")
    path = (source.parent / unquote(name)).resolve() if name else source
    if name.startswith("/") or ROOT not in (path, *path.parents):
        report(source, line, f"the link {target} leaves the repository", "write it relative to this file")
    elif not path.exists():
        others = {str(other.relative_to(ROOT)) for other in ROOT.glob("**/" + path.name) if "target" not in other.parts}
        fix = f"did you mean {', '.join(sorted(others))}?" if others else "correct or remove the link"
        report(source, line, f"the target of {target} does not exist", fix)
    elif DOCS in source.parents and source != REPOSITORY_PAGE and DOCS not in path.parents:
        fix = "the book does not contain it: add it to docs/repository.md and link to its entry there"
        report(source, line, f"the link {target} leaves docs/", fix)
    elif anchor and path.suffix == ".md" and unquote(anchor) not in page(path).anchors:
        report(source, line, f"{path.relative_to(ROOT)} has no anchor #{anchor}", nearest(anchor, page(path).anchors))
    elif anchor and path.suffix != ".md":
        report(source, line, f"the link {target} has an anchor, and its target is not a page", "remove the anchor")
    return True


def check_list(path, expected):
    """Checks that a file links to every page in docs/ exactly once."""
    if not path.exists():
        return report(path, 1, "the file does not exist", "create it")
    listed = {}
    for line, target in page(path).links():
        if EXTERNAL.match(target):
            continue
        entry = (path.parent / unquote(target)).resolve()
        if entry in listed:
            report(path, line, f"{target} is listed twice", f"remove this line, or line {listed[entry]}")
        elif entry.exists() and entry not in expected:
            report(path, line, f"{target} is not a page in docs/", "remove this line")
        listed.setdefault(entry, line)
    for missing in sorted(expected - listed.keys()):
        report(path, 1, f"{missing.relative_to(DOCS)} is not listed", "add a line for it")


def check_descriptions():
    """Checks that each entry of llms.txt is one line: a link and a description."""
    if not INDEX.exists():
        return
    for number, line in enumerate(INDEX.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("- ") and not re.fullmatch(r"- \[[^\]]+\]\([^)]+\): \S.{9,}", line):
            report(INDEX, number, "the entry has no description", "write it as - [Title](page.md): what the page is for")


class BuiltPage(html.parser.HTMLParser):
    """A page of the built book: its ids, and the targets of its links with their lines."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.in_repository_list = set(), [], 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        # The links of docs/repository.md leave the book; a style shows them as text.
        if tag == "div" and (self.in_repository_list or "repository-only" in (attributes.get("class") or "")):
            self.in_repository_list += 1
        for name in ("href", "src"):
            if attributes.get(name) and not (tag == "a" and self.in_repository_list):
                self.links.append((self.getpos()[0], attributes[name]))

    def handle_endtag(self, tag):
        if tag == "div" and self.in_repository_list:
            self.in_repository_list -= 1


def check_book(book):
    """Checks the links and anchors of the built pages. Returns the numbers of pages and links."""
    # toc.html is a frame for browsers without scripts; print.html repeats all pages, with anchors of its own.
    built = {path.resolve(): BuiltPage(path) for path in sorted(book.glob("**/*.html")) if path.name != "print.html"}
    # mdBook names the page of a README index.html.
    names = (path.relative_to(DOCS) for path in DOCS.glob("**/*.md") if path != SUMMARY)
    expected = {book / (name.with_name("index.md") if name.name == "README.md" else name).with_suffix(".html") for name in names}
    for missing in sorted(expected - built.keys()):
        report(missing, 1, "the page was not built", "add it to docs/SUMMARY.md")
    count = 0
    for path, its in built.items():
        for line, target in its.links:
            if EXTERNAL.match(target) or path.name == "404.html" and target.startswith("/"):
                continue
            count += 1
            name, _, anchor = target.partition("#")
            other = (path.parent / unquote(name)).resolve() if name else path
            if not other.is_file():
                report(path, line, f"the target of {target} does not exist", "correct the link in the source")
            elif anchor and other in built and unquote(anchor) not in built[other].ids:
                report(path, line, f"{other.relative_to(book)} has no id {anchor}", nearest(anchor, built[other].ids))
    return len(built), count


def finish():
    """Prints the findings, and returns the exit code."""
    for path, line, text in sorted(findings):
        print(f"{path}:{line}: {text}", file=sys.stderr)
    if findings:
        print(f"{len(findings)} findings", file=sys.stderr)
        return 1
    return 0


def main():
    if sys.argv[1:2] == ["--book"] and len(sys.argv) == 3:
        built, links = check_book(Path(sys.argv[2]).resolve())
        print(f"{built} built pages, {links} relative links")
        return finish()
    if len(sys.argv) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    in_docs = set(DOCS.glob("**/*.md")) - {SUMMARY}
    checked = [ROOT / name for name in NAMED] + sorted(in_docs) + [SUMMARY, INDEX] + sorted(ROOT.glob("deploy/**/README.md"))
    relative = external = 0
    for path in checked:
        if not path.exists():
            report(path, 1, "the file does not exist", "restore it, or remove it from NAMED in scripts/check-docs.py")
            continue
        for line, target in page(path).links():
            if check_link(path, line, target):
                relative += 1
            else:
                external += 1
    check_list(SUMMARY, in_docs)
    check_list(INDEX, in_docs)
    check_descriptions()
    anchors = sum(len(page(path).anchors) for path in checked if path.exists())
    print(f"{len(checked)} files, {len(in_docs)} pages in the book, {relative} relative links, {anchors} anchors; "
          f"{external} external links are not checked")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
