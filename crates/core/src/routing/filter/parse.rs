//! Reading a filter: every fault is named with its place in the filter and with what would be right.

use std::{borrow::Cow, collections::BTreeSet};

use serde_json::{Value, value::RawValue};

use super::{
    Comparison, Expr, Literal, MAX_BYTES, MAX_DEPTH, MAX_PARTS, MAX_STEPS, Pointer, Test,
    payload::{self, Scalar},
};
use crate::field_error::{Invalid, nearest};

/// What an expression can be made of.
const WORDS: [&str; 14] =
    ["all", "any", "not", "path", "eq", "ne", "gt", "gte", "lt", "lte", "in", "exists", "prefix", "suffix"];

/// What other languages call them.
const ALSO_CALLED: [(&str, &str); 16] = [
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

pub(super) fn filter(text: &str) -> Result<Expr, Invalid> {
    if text.len() > MAX_BYTES {
        let size = text.len();
        return Err(Invalid::new("filter", format!("is {size} bytes long; at most {MAX_BYTES} are allowed")));
    }
    // What is stored is also shown, and so has to be JSON that anybody can read.
    if let Err(error) = serde_json::from_str::<Value>(text) {
        return Err(Invalid::new("filter", format!("cannot be read: {error}")));
    }
    Reader { parts: 0 }.expression(text.trim_ascii(), "filter", 1)
}

struct Reader {
    parts: usize,
}

impl Reader {
    fn count(&mut self, place: &str) -> Result<(), Invalid> {
        self.parts += 1;
        match self.parts > MAX_PARTS {
            true => Err(at(place, format!("is one part too many; a filter has at most {MAX_PARTS}"))),
            false => Ok(()),
        }
    }

    fn expression(&mut self, raw: &str, place: &str, depth: usize) -> Result<Expr, Invalid> {
        self.count(place)?;
        if depth > MAX_DEPTH {
            return Err(at(place, format!("is nested too deeply; at most {MAX_DEPTH} levels are allowed")));
        }
        let members = read_members(raw, place)?;
        match &members[..] {
            [] => Err(at(place, EXAMPLE)),
            [(word, value)] if word == "all" => {
                Ok(Expr::All(self.list(value, &inner(place, word), depth)?))
            }
            [(word, value)] if word == "any" => {
                Ok(Expr::Any(self.list(value, &inner(place, word), depth)?))
            }
            [(word, value)] if word == "not" => {
                let part = self.expression(value.get(), &inner(place, word), depth + 1)?;
                Ok(Expr::Not(Box::new(part)))
            }
            _ => self.condition(&members, place),
        }
    }

    fn list(&mut self, value: &RawValue, place: &str, depth: usize) -> Result<Box<[Expr]>, Invalid> {
        let items = items(value, place)?;
        if items.is_empty() {
            return Err(at(place, "must hold at least one expression"));
        }
        let part =
            |(n, item): (usize, &RawValue)| self.expression(item.get(), &format!("{place}[{n}]"), depth + 1);
        items.into_iter().enumerate().map(part).collect()
    }

    fn condition(&mut self, members: &[(Cow<'_, str>, &RawValue)], place: &str) -> Result<Expr, Invalid> {
        if let Some((word, _)) = members.iter().find(|(word, _)| ["all", "any", "not"].contains(&&**word)) {
            return Err(at(&inner(place, word), "must stand alone; put both into one \"all\""));
        }
        let Some((_, path)) = members.iter().find(|(word, _)| word == "path") else {
            let missing = at(&inner(place, "path"), "is missing; say where to look, such as \"/amount\"");
            return Err(members.iter().find_map(|(word, _)| unknown(word, place)).unwrap_or(missing));
        };
        let path = pointer(path, &inner(place, "path"))?;
        let mut tests = Vec::with_capacity(members.len() - 1);
        for (word, value) in members.iter().filter(|(word, _)| word != "path") {
            tests.push(self.test(word, value, place)?);
        }
        if tests.is_empty() {
            return Err(at(
                place,
                "says what to look at but not what has to hold; add a test, such as \"exists\": true",
            ));
        }
        Ok(Expr::Where(Box::new(path), tests.into()))
    }

    fn test(&mut self, word: &str, value: &RawValue, place: &str) -> Result<Test, Invalid> {
        if let Some(unknown) = unknown(word, place) {
            return Err(unknown);
        }
        let place = &inner(place, word);
        self.count(place)?;
        let compare = |comparison| Ok(Test::Compare(comparison, comparable(value, place)?));
        match word {
            "eq" => Ok(Test::Eq(literal(value, place)?)),
            "ne" => Ok(Test::Ne(literal(value, place)?)),
            "gt" => compare(Comparison::Gt),
            "gte" => compare(Comparison::Gte),
            "lt" => compare(Comparison::Lt),
            "lte" => compare(Comparison::Lte),
            "in" => self.one_of(value, place),
            "exists" => match value.get() {
                "true" => Ok(Test::Exists(true)),
                "false" => Ok(Test::Exists(false)),
                _ => Err(at(place, "must be true or false")),
            },
            "prefix" => Ok(Test::Prefix(text(value, place)?)),
            _ => Ok(Test::Suffix(text(value, place)?)),
        }
    }

    fn one_of(&mut self, value: &RawValue, place: &str) -> Result<Test, Invalid> {
        let items = items(value, place)?;
        if items.is_empty() {
            return Err(at(place, "must hold at least one value"));
        }
        let mut literals = Vec::with_capacity(items.len());
        for (n, item) in items.into_iter().enumerate() {
            let place = format!("{place}[{n}]");
            self.count(&place)?;
            literals.push(literal(item, &place)?);
        }
        Ok(Test::In(literals.into()))
    }
}

const EXAMPLE: &str = "must be an object, such as {\"path\": \"/amount\", \"gte\": 100} or {\"all\": [...]}";

fn at(place: &str, message: impl Into<String>) -> Invalid {
    Invalid::new(place.to_owned(), message)
}

fn inner(place: &str, word: &str) -> String {
    format!("{place}.{word}")
}

/// Says so if a word means nothing here.
fn unknown(word: &str, place: &str) -> Option<Invalid> {
    if WORDS.contains(&word) {
        return None;
    }
    let word: String = word.escape_debug().take(64).collect();
    let lower = word.to_lowercase();
    let synonym = ALSO_CALLED.iter().find(|(other, _)| *other == lower.trim_start_matches('$'));
    let meant = synonym.map(|(_, ours)| *ours).or_else(|| nearest(&word, &WORDS));
    let hint = meant.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Some(at(&inner(place, &word), format!("means nothing here{hint} (there are {})", WORDS.join(", "))))
}

fn read_members<'a>(raw: &'a str, place: &str) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, Invalid> {
    let members = payload::members(raw).ok_or_else(|| at(place, EXAMPLE))?;
    let mut seen = BTreeSet::new();
    let named = |(name, value)| {
        let name = payload::text(name).unwrap_or_default();
        match seen.insert(name.clone()) {
            true => Ok((name, value)),
            false => Err(at(&inner(place, &name), "is there twice; put both into one \"all\"")),
        }
    };
    members.into_iter().map(named).collect()
}

fn items<'a>(value: &'a RawValue, place: &str) -> Result<Vec<&'a RawValue>, Invalid> {
    serde_json::from_str(value.get()).map_err(|_| at(place, "must be a list"))
}

fn text(value: &RawValue, place: &str) -> Result<Box<str>, Invalid> {
    payload::text(value.get()).map(Into::into).ok_or_else(|| at(place, "must be a text"))
}

fn literal(value: &RawValue, place: &str) -> Result<Literal, Invalid> {
    match payload::scalar(value.get()) {
        Scalar::Null => Ok(Literal::Null),
        Scalar::Bool(value) => Ok(Literal::Bool(value)),
        Scalar::Number(number) => Ok(Literal::Number(number)),
        Scalar::Text(text) => Ok(Literal::Text(text.into())),
        Scalar::Other => Err(at(
            place,
            "must be a text, a number, true, false or null; what is inside objects and lists has paths of its own, \
             such as \"/items/0/id\"",
        )),
    }
}

fn comparable(value: &RawValue, place: &str) -> Result<Literal, Invalid> {
    match literal(value, place)? {
        Literal::Null | Literal::Bool(_) => {
            Err(at(place, "must be a number or a text; nothing else has an order"))
        }
        literal => Ok(literal),
    }
}

fn pointer(value: &RawValue, place: &str) -> Result<Pointer, Invalid> {
    let text = text(value, place)?;
    if !text.is_empty() && !text.starts_with('/') {
        let fixed: String =
            text.trim_start_matches(['$', '.']).replace('.', "/").escape_debug().take(64).collect();
        return Err(at(
            place,
            format!("must be a JSON pointer, which begins with /; did you mean \"/{fixed}\"?"),
        ));
    }
    let steps: Vec<&str> = text.split('/').skip(1).collect();
    if steps.len() > MAX_STEPS {
        return Err(at(place, format!("has {} steps; at most {MAX_STEPS} are allowed", steps.len())));
    }
    let step = |step: &str| {
        let bad =
            step.match_indices('~').any(|(n, _)| !matches!(step.as_bytes().get(n + 1), Some(b'0' | b'1')));
        match bad {
            true => Err(at(place, "has a ~ that is neither ~0 (for ~) nor ~1 (for /)")),
            false => Ok(step.replace("~1", "/").replace("~0", "~").into_boxed_str()),
        }
    };
    let steps = steps.into_iter().map(step).collect::<Result<_, _>>()?;
    Ok(Pointer { text, steps })
}
