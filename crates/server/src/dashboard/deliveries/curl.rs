//! Formats the request of an attempt as a shell command. All values are quoted, so the command runs only `curl`.

use crate::api::HeaderView;

/// Maximum body size that is passed as an argument; some systems do not accept longer arguments.
const MAX_ARGUMENT_BYTES: usize = 64 * 1024;
/// Delimiter of the here-document for a long body. A number is appended if the body contains that line.
const END: &str = "REDRIVE_BODY";

/// Returns a command that sends the same request. Secrets are replaced by `[redacted]`.
pub(super) fn command(url: &str, headers: &[HeaderView], body: &[u8]) -> String {
    let mut command = format!("curl --globoff --include --request POST {}", quoted(url));
    for header in headers {
        // `name;` is curl's syntax for a header without a value; with `name:` curl would omit it.
        let line = match header.value.is_empty() {
            true => format!("{};", header.name),
            false => format!("{}: {}", header.name, header.value),
        };
        command += &format!(" \\\n  --header {}", quoted(&line));
    }
    let body = String::from_utf8_lossy(body);
    match body.len() {
        0..MAX_ARGUMENT_BYTES => command += &format!(" \\\n  --data-raw {}\n", quoted(&body)),
        _ => {
            let end = end_of(&body);
            command += &format!(" \\\n  --data-binary @- <<'{end}'\n{body}\n{end}\n");
        }
    }
    command
}

/// Quotes text as one literal shell word.
fn quoted(text: &str) -> String {
    let text: String = text.chars().filter(|char| *char != '\0').collect();
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a delimiter that is not a line of the body.
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

    /// Runs the command with a fake `curl` and returns the arguments and the input that it received.
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
        assert_eq!(files.len(), 2, "no other file was created");
        let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let args = read("args");
        let args = args.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        (args, read("input"))
    }

    const NASTY: &str = "'; touch pwned; echo '$(touch pwned)`touch pwned`\\\"\n\r!! && touch pwned #";

    #[test]
    fn shell_metacharacters_reach_curl_unchanged_and_run_nothing() {
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
    fn long_body_is_passed_as_here_document() {
        let body = format!("{}\n{END}\n{END}_1\n$(touch pwned)", "x".repeat(MAX_ARGUMENT_BYTES));
        let (args, input) = run(&command("https://x.example", &[], body.as_bytes()));
        assert_eq!(args[5..], ["--data-binary", "@-"]);
        assert_eq!(input, format!("{body}\n"));
    }
}
