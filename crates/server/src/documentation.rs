//! Compares the parts of the documentation that are generated from the code with the pages. For tests only.

const BEGIN: &str = "<!-- generated: begin -->\n";
const END: &str = "<!-- generated: end -->";

/// Fails if the generated part of a page differs from `text`; with `UPDATE_DOCS` in the environment, writes it instead.
#[track_caller]
pub(crate) fn check_generated(page: &str, text: &str) {
    let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
    let old = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let marked = || Some((old.split_once(BEGIN)?.0, old.split_once(BEGIN)?.1.split_once(END)?));
    let (before, (generated, after)) = marked().unwrap_or_else(|| panic!("{page} has no lines {BEGIN}{END}"));
    // Markdown needs the blank lines around a table or a heading.
    let expected = format!("\n{text}\n");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    let count = generated.lines().count().max(expected.lines().count());
    let (mut found, mut wanted) = (generated.lines(), expected.lines());
    let differing = (0..count).map(|_| (found.next(), wanted.next())).find(|(found, wanted)| found != wanted);
    assert!(
        generated == expected,
        "{page} is out of date; run: UPDATE_DOCS=1 cargo nextest run --profile full documentation_lists\nfirst difference (page, code): \
         {differing:#?}"
    );
}

/// Fails if a file differs from `text`; with `UPDATE_DOCS` in the environment, writes it instead.
#[track_caller]
#[allow(dead_code, reason = "the integration tests share this module and generate no whole file")]
pub(crate) fn check_generated_file(name: &str, text: &str) {
    let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut found, mut wanted) = (old.lines(), text.lines());
    let count = old.lines().count().max(text.lines().count());
    let differing = (0..count).map(|_| (found.next(), wanted.next())).find(|(found, wanted)| found != wanted);
    assert!(
        old == text,
        "{name} is out of date; run: UPDATE_DOCS=1 cargo nextest run -p redrive documentation_lists\nfirst difference (file, \
         code): {differing:#?}"
    );
}
