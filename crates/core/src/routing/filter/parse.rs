//! Parser of filters: every error names its position in the filter and what is expected there.

use std::{borrow::Cow, collections::BTreeSet};

use serde_json::{Value, value::RawValue};

use super::{
    Comparison, Expr, Literal, MAX_BYTES, MAX_DEPTH, MAX_PARTS, MAX_STEPS, Pointer, Test,
    payload::{self, Scalar},
};
use crate::field_error::{FieldError, closest_match};

/// Keywords of an expression.
const KEYWORDS: [&str; 14] =
    ["all", "any", "not", "path", "eq", "ne", "gt", "gte", "lt", "lte", "in", "exists", "prefix", "suffix"];

/// Names that other languages use for these keywords.
const KEYWORD_ALIASES: [(&str, &str); 16] = [
    ("and", "all"),
    ("or", "any"),
    ("equals", "eq"),
    ("equal", "eq"),
    ("is", "eq"),
    ("neq", "ne"),
    ("greater", "gt"),
    ("greater_than", "gt"),
    ("less", "lt"),
    ("less_than", "lt"),
    ("min", "gte"),
    ("max", "lte"),
    ("one_of", "in"),
    ("starts_with", "prefix"),
    ("ends_with", "suffix"),
    ("pointer", "path"),
];

pub(super) fn filter(text: &str) -> Result<Expr, FieldError> {
    if text.len() > MAX_BYTES {
        let size = text.len();
        return Err(FieldError::new(
            "filter",
            format!("is {size} bytes long; at most {MAX_BYTES} are allowed"),
        ));
    }
    // The stored text is also displayed, so it must be valid JSON for any parser.
    if let Err(error) = serde_json::from_str::<Value>(text) {
        return Err(FieldError::new("filter", format!("cannot be parsed as JSON: {error}")));
    }
    Reader { parts: 0 }.expression(text.trim_ascii(), "filter", 1)
}

struct Reader {
    parts: usize,
}

impl Reader {
    fn count(&mut self, location: &str) -> Result<(), FieldError> {
        self.parts += 1;
        match self.parts > MAX_PARTS {
            true => {
                Err(at(location, format!("exceeds the limit of {MAX_PARTS} parts per filter; remove some")))
            }
            false => Ok(()),
        }
    }

    fn expression(&mut self, raw: &str, location: &str, depth: usize) -> Result<Expr, FieldError> {
        self.count(location)?;
        if depth > MAX_DEPTH {
            return Err(at(
                location,
                format!("is nested too deeply; at most {MAX_DEPTH} levels are allowed"),
            ));
        }
        let members = read_members(raw, location)?;
        match &members[..] {
            [] => Err(at(location, EXAMPLE)),
            [(word, value)] if word == "all" => {
                Ok(Expr::All(self.list(value, &inner(location, word), depth)?))
            }
            [(word, value)] if word == "any" => {
                Ok(Expr::Any(self.list(value, &inner(location, word), depth)?))
            }
            [(word, value)] if word == "not" => {
                let part = self.expression(value.get(), &inner(location, word), depth + 1)?;
                Ok(Expr::Not(Box::new(part)))
            }
            _ => self.condition(&members, location),
        }
    }

    fn list(&mut self, value: &RawValue, location: &str, depth: usize) -> Result<Box<[Expr]>, FieldError> {
        let items = items(value, location)?;
        if items.is_empty() {
            return Err(at(location, "must contain at least one expression"));
        }
        let part = |(n, item): (usize, &RawValue)| {
            self.expression(item.get(), &format!("{location}[{n}]"), depth + 1)
        };
        items.into_iter().enumerate().map(part).collect()
    }

    fn condition(
        &mut self,
        members: &[(Cow<'_, str>, &RawValue)],
        location: &str,
    ) -> Result<Expr, FieldError> {
        if let Some((word, _)) = members.iter().find(|(word, _)| ["all", "any", "not"].contains(&&**word)) {
            return Err(at(
                &inner(location, word),
                "must be the only key of its object; to combine both, put them into one \"all\"",
            ));
        }
        let Some((_, path)) = members.iter().find(|(word, _)| word == "path") else {
            let missing =
                at(&inner(location, "path"), "is missing; set it to a JSON pointer, such as \"/amount\"");
            return Err(members
                .iter()
                .find_map(|(word, _)| reject_unknown_keyword(word, location))
                .unwrap_or(missing));
        };
        let path = pointer(path, &inner(location, "path"))?;
        let mut tests = Vec::with_capacity(members.len() - 1);
        for (word, value) in members.iter().filter(|(word, _)| word != "path") {
            tests.push(self.test(word, value, location)?);
        }
        if tests.is_empty() {
            return Err(at(location, "has a path but no test; add a test, such as \"exists\": true"));
        }
        Ok(Expr::Where(Box::new(path), tests.into()))
    }

    fn test(&mut self, word: &str, value: &RawValue, location: &str) -> Result<Test, FieldError> {
        if let Some(unknown) = reject_unknown_keyword(word, location) {
            return Err(unknown);
        }
        let location = &inner(location, word);
        self.count(location)?;
        let compare = |comparison| Ok(Test::Compare(comparison, comparable(value, location)?));
        match word {
            "eq" => Ok(Test::Eq(literal(value, location)?)),
            "ne" => Ok(Test::Ne(literal(value, location)?)),
            "gt" => compare(Comparison::Gt),
            "gte" => compare(Comparison::Gte),
            "lt" => compare(Comparison::Lt),
            "lte" => compare(Comparison::Lte),
            "in" => self.one_of(value, location),
            "exists" => match value.get() {
                "true" => Ok(Test::Exists(true)),
                "false" => Ok(Test::Exists(false)),
                _ => Err(at(location, "must be true or false")),
            },
            "prefix" => Ok(Test::Prefix(text(value, location)?)),
            _ => Ok(Test::Suffix(text(value, location)?)),
        }
    }

    fn one_of(&mut self, value: &RawValue, location: &str) -> Result<Test, FieldError> {
        let items = items(value, location)?;
        if items.is_empty() {
            return Err(at(location, "must contain at least one value"));
        }
        let mut literals = Vec::with_capacity(items.len());
        for (n, item) in items.into_iter().enumerate() {
            let location = format!("{location}[{n}]");
            self.count(&location)?;
            literals.push(literal(item, &location)?);
        }
        Ok(Test::In(literals.into()))
    }
}

const EXAMPLE: &str = "must be an object, such as {\"path\": \"/amount\", \"gte\": 100} or {\"all\": [...]}";

fn at(location: &str, message: impl Into<String>) -> FieldError {
    FieldError::new(location.to_owned(), message)
}

fn inner(location: &str, word: &str) -> String {
    format!("{location}.{word}")
}

/// Returns an error if a word is not a keyword.
fn reject_unknown_keyword(word: &str, location: &str) -> Option<FieldError> {
    if KEYWORDS.contains(&word) {
        return None;
    }
    let word: String = word.escape_debug().take(64).collect();
    let lower = word.to_lowercase();
    let synonym = KEYWORD_ALIASES.iter().find(|(other, _)| *other == lower.trim_start_matches('$'));
    let meant = synonym.map(|(_, ours)| *ours).or_else(|| closest_match(&word, &KEYWORDS));
    let hint = meant.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Some(at(&inner(location, &word), format!("is not a keyword{hint} (keywords: {})", KEYWORDS.join(", "))))
}

fn read_members<'a>(raw: &'a str, location: &str) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, FieldError> {
    let members = payload::members(raw).ok_or_else(|| at(location, EXAMPLE))?;
    let mut seen = BTreeSet::new();
    let named = |(name, value)| {
        let name = payload::text(name).unwrap_or_default();
        match seen.insert(name.clone()) {
            true => Ok((name, value)),
            false => Err(at(&inner(location, &name), "is given twice; put both into one \"all\"")),
        }
    };
    members.into_iter().map(named).collect()
}

fn items<'a>(value: &'a RawValue, location: &str) -> Result<Vec<&'a RawValue>, FieldError> {
    serde_json::from_str(value.get()).map_err(|_| at(location, "must be a list"))
}

fn text(value: &RawValue, location: &str) -> Result<Box<str>, FieldError> {
    payload::text(value.get()).map(Into::into).ok_or_else(|| at(location, "must be a string"))
}

fn literal(value: &RawValue, location: &str) -> Result<Literal, FieldError> {
    match payload::scalar(value.get()) {
        Scalar::Null => Ok(Literal::Null),
        Scalar::Bool(value) => Ok(Literal::Bool(value)),
        Scalar::Number(number) => Ok(Literal::Number(number)),
        Scalar::Text(text) => Ok(Literal::Text(text.into())),
        Scalar::Other => Err(at(
            location,
            "must be a string, a number, true, false or null; to test a value inside an object or a list, use its \
             path, such as \"/items/0/id\"",
        )),
    }
}

fn comparable(value: &RawValue, location: &str) -> Result<Literal, FieldError> {
    match literal(value, location)? {
        Literal::Null | Literal::Bool(_) => {
            Err(at(location, "must be a number or a string; other values have no order"))
        }
        literal => Ok(literal),
    }
}

fn pointer(value: &RawValue, location: &str) -> Result<Pointer, FieldError> {
    let text = text(value, location)?;
    if !text.is_empty() && !text.starts_with('/') {
        let fixed: String =
            text.trim_start_matches(['$', '.']).replace('.', "/").escape_debug().take(64).collect();
        return Err(at(
            location,
            format!("must be a JSON pointer, which starts with /; did you mean \"/{fixed}\"?"),
        ));
    }
    let steps: Vec<&str> = text.split('/').skip(1).collect();
    if steps.len() > MAX_STEPS {
        return Err(at(location, format!("has {} steps; at most {MAX_STEPS} are allowed", steps.len())));
    }
    let step = |step: &str| {
        let bad =
            step.match_indices('~').any(|(n, _)| !matches!(step.as_bytes().get(n + 1), Some(b'0' | b'1')));
        match bad {
            true => Err(at(location, "contains a ~ that is neither ~0 (for ~) nor ~1 (for /)")),
            false => Ok(step.replace("~1", "/").replace("~0", "~").into_boxed_str()),
        }
    };
    let steps = steps.into_iter().map(step).collect::<Result<_, _>>()?;
    Ok(Pointer { text, steps })
}
