//! Text of tenants in emails: on one line, bounded, without characters that hide or reorder other text, and
//! without anything that email clients turn into a link.

/// Maximum length of a host in a subject.
const MAX_SUBJECT_HOST_CHARS: usize = 60;

/// Makes text of a tenant safe for the body of an email, with at most `max_chars` characters before it is
/// defanged.
pub fn body_text(text: &str, max_chars: usize) -> String {
    defang(&one_line(text, max_chars))
}

/// Returns a host that is safe in a subject, or `None` unless it is a plain host name or address of bounded
/// length. Every host of a validated URL is plain.
pub fn subject_host(host: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    let fits = (1..=MAX_SUBJECT_HOST_CHARS).contains(&host.len()) && host.chars().all(plain);
    fits.then_some(host)
}

/// Returns text on one line: line breaks and other control characters become spaces, invisible characters and
/// those that change the writing direction are removed, and longer text is truncated.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let plain: String = text
        .chars()
        .filter(|c| !is_invisible(*c))
        .map(|c| if breaks_line(c) { ' ' } else { c })
        .take(max_chars.saturating_mul(4).max(1024))
        .collect();
    let plain = plain.trim();
    match plain.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", plain[..end].trim_end()),
        None => plain.to_owned(),
    }
}

/// Rewrites hosts, URLs and addresses so that no email client turns them into links: `https[:]//example[.]com`,
/// `jane[@]example[.]com`.
pub fn defang(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let goes_on = chars.peek().is_some_and(|next| !next.is_whitespace());
        match c {
            // Name resolution treats the full stops of other scripts as dots.
            '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}' | '\u{2024}' if goes_on => written.push_str("[.]"),
            ':' | '\u{ff1a}' if goes_on => written.push_str("[:]"),
            '@' | '\u{ff20}' => written.push_str("[@]"),
            _ => written.push(c),
        }
    }
    written
}

/// Returns whether a character is invisible and changes how others are displayed.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn breaks_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_hosts_and_addresses_are_defanged() {
        for (text, expected) in [
            ("see https://evil.example/a?b=c.d", "see https[:]//evil[.]example/a?b=c[.]d"),
            ("www.evil.example", "www[.]evil[.]example"),
            ("mailto:jane@evil.example", "mailto[:]jane[@]evil[.]example"),
            ("javascript:alert(1)", "javascript[:]alert(1)"),
            ("evil\u{3002}example", "evil[.]example"),
            ("A sentence. Another: yes.", "A sentence. Another: yes."),
            ("127.0.0.1:8080", "127[.]0[.]0[.]1[:]8080"),
        ] {
            assert_eq!(defang(text), expected);
        }
    }

    #[test]
    fn text_is_one_bounded_line_without_hidden_characters() {
        assert_eq!(one_line(&"ä".repeat(100), 3), "äää…");
        assert_eq!(one_line("  a\tb\u{2028}c ", 80), "a b c");
        assert_eq!(one_line("a\u{202e}b\u{200b}c\u{2066}d\u{feff}e\u{e0041}f\u{ad}g", 80), "abcdefg");
        assert_eq!(
            body_text("ev\u{200b}il.exa\u{200d}mple\r\nBcc: x@y.z", 80),
            "evil[.]example  Bcc: x[@]y[.]z"
        );
    }

    #[test]
    fn only_plain_hosts_are_used_in_subjects() {
        for good in ["warehouse.example", "127.0.0.1", "[::1]", "xn--bcher-kva.example", "a_b.example"] {
            assert_eq!(subject_host(good), Some(good));
        }
        let long = "a".repeat(61);
        for bad in ["", "a b", "a\r\nb", "bücher.example", "<b>", "a/b", &long] {
            assert_eq!(subject_host(bad), None, "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn body_text_never_contains_a_link_or_line_break(
            text in prop_oneof!["\\PC{0,60}", "[a-z.:/@ \\[\\]]{0,40}", any::<String>()],
        ) {
            let written = body_text(&text, 80);
            let (chars, mut before) = (written.chars().collect::<Vec<_>>(), None);
            for (index, c) in chars.iter().enumerate() {
                let next = chars.get(index + 1);
                let is_fenced = before == Some('[') && next == Some(&']');
                if matches!(c, '.' | ':') && next.is_some_and(|next| !next.is_whitespace()) {
                    prop_assert!(is_fenced, "{written}");
                }
                prop_assert!(*c != '@' || is_fenced, "{written}");
                prop_assert!(!c.is_control() && !is_invisible(*c));
                before = Some(*c);
            }
        }
    }
}
