//! Makes text of untrusted users safe to display: characters that reorder or hide the text around them are
//! escaped. Used by pages, their scripts (`assets/js/visible.js`, the same set of characters) and emails.

use std::borrow::Cow;

/// Returns whether a character changes how the text around it is displayed while being invisible itself: a
/// bidirectional control, a zero-width character, a line separator or another control. Joiners are excluded,
/// because scripts and emoji need them.
pub fn is_deceptive(char: char) -> bool {
    let is_bidirectional = matches!(
        char,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let is_invisible = matches!(
        char,
        '\u{00ad}' | '\u{180e}' | '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    is_bidirectional || is_invisible || char.is_control() && !matches!(char, '\n' | '\r' | '\t')
}

/// Returns the text with deceptive characters escaped, such as `\u{202e}`.
pub fn escape_deceptive(text: &str) -> Cow<'_, str> {
    // Fast path: most text contains none.
    if !text.chars().any(is_deceptive) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_deceptive(char) {
            true => shown.extend(char.escape_unicode()),
            false => shown.push(char),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn deceptive_characters_are_escaped_and_others_kept() {
        let file = "invoice\u{202e}gpj.exe";
        assert_eq!(escape_deceptive(file), "invoice\\u{202e}gpj.exe");
        assert_eq!(
            escape_deceptive("a\u{0}b\u{200b}\u{2066}\u{feff}"),
            "a\\u{0}b\\u{200b}\\u{2066}\\u{feff}"
        );
        for kept in ["plain\tand\r\nlines", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}", "\u{1f468}\u{200d}\u{1f469}", ""]
        {
            assert!(matches!(escape_deceptive(kept), Cow::Borrowed(same) if same == kept));
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_not_deceptive_and_stays_stable(text in "\\PC{0,20}|[\u{202a}-\u{2069}a-c]{0,20}") {
            let shown = escape_deceptive(&text);
            prop_assert!(!shown.chars().any(is_deceptive));
            let kept: String = text.chars().filter(|char| !is_deceptive(*char)).collect();
            prop_assert!(shown.len() >= kept.len());
            prop_assert_eq!(escape_deceptive(&shown).into_owned(), shown.into_owned());
        }
    }
}
