//! The request of an attempt as a command for a shell. Whatever is in it is quoted: it runs nothing but `curl`.

use crate::api::HeaderView;

/// Longer bodies do not fit into one argument of a command on every system.
const MOST_IN_ARGUMENT: usize = 64 * 1024;
/// Ends a body that is written below the command, with a number where the body has that line itself.
const END: &str = "REDRIVE_BODY";

/// A command that sends the same request. Secrets are not in it: `[redacted]` stands where they were.
pub(super) fn command(url: &str, headers: &[HeaderView], body: &[u8]) -> String {
    let mut command = format!("curl --globoff --include --request POST {}", quoted(url));
    for header in headers {
        // A header without a value is written so; else curl would leave it out.
        let line = match header.value.is_empty() {
            true => format!("{};", header.name),
            false => format!("{}: {}", header.name, header.value),
        };
        command += &format!(" \\\n  --header {}", quoted(&line));
    }
    let body = String::from_utf8_lossy(body);
    match body.len() {
        0..MOST_IN_ARGUMENT => command += &format!(" \\\n  --data-raw {}\n", quoted(&body)),
        _ => {
            let end = end_of(&body);
            command += &format!(" \\\n  --data-binary @- <<'{end}'\n{body}\n{end}\n");
        }
    }
    command
}

/// A word that a shell takes for itself, whatever is in it.
fn quoted(text: &str) -> String {
    let text: String = text.chars().filter(|char| *char != '\0').collect();
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A line that the body does not have.
fn end_of(body: &str) -> String {
    let is_free = |end: &String| !body.lines().any(|line| line.trim_end() == end);
    let mut numbered = (1..).map(|n| format!("{END}_{n}"));
    Some(END.to_owned()).filter(is_free).or_else(|| numbered.find(is_free)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn header(name: &str, value: &str) -> HeaderView {
        HeaderView { name: name.into(), value: value.into() }
    }

    /// What a shell hands to `curl`, argument by argument, and what it lets it read.
    fn run(command: &str) -> (Vec<String>, String) {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "curl() {{ for a in \"$@\"; do printf '%s\\0' \"$a\"; done > {0}/args; cat > {0}/input; }}\n{command}",
            folder.path().display()
        );
        let out = Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 2, "nothing else was made");
        let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let args = read("args");
        let args = args.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        (args, read("input"))
    }

    const NASTY: &str = "'; touch pwned; echo '$(touch pwned)`touch pwned`\\\"\n\r!! && touch pwned #";

    #[test]
    fn hostile_text_reaches_curl_as_it_is_and_runs_nothing() {
        let url = format!("https://x.example/{NASTY}?[a]={{b}}");
        let body = format!("{{\"a\": \"{NASTY}\"}}");
        let headers =
            [header("x-a", NASTY), header("x-empty", ""), header("webhook-signature", "[redacted]")];
        let (args, input) = run(&command(&url, &headers, body.as_bytes()));
        let expected = [
            "--globoff",
            "--include",
            "--request",
            "POST",
            &url,
            "--header",
            &format!("x-a: {NASTY}"),
            "--header",
            "x-empty;",
            "--header",
            "webhook-signature: [redacted]",
            "--data-raw",
            &body,
        ];
        assert_eq!((args, input), (expected.map(str::to_owned).to_vec(), String::new()));
    }

    #[test]
    fn a_long_body_is_read_from_below_the_command() {
        let body = format!("{}\n{END}\n{END}_1\n$(touch pwned)", "x".repeat(MOST_IN_ARGUMENT));
        let (args, input) = run(&command("https://x.example", &[], body.as_bytes()));
        assert_eq!(args[5..], ["--data-binary", "@-"]);
        assert_eq!(input, format!("{body}\n"));
    }
}
