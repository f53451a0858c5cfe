//! Mutations of seeds, from a deterministic pseudo-random generator.

/// The maximum length of a mutated input.
pub const MAX_INPUT_BYTES: usize = 2_048;

/// A small generator of pseudo-random numbers (xorshift64*). The same seed gives the same inputs.
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_number() >> 33).unwrap_or(0).checked_rem(end).unwrap_or(0)
    }
}

/// Bytes that are special to some parser.
const SPECIAL: &[u8] =
    b"\0\t\n\r \"%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~AZaz\x7f\x80\xbf\xc0\xc3\xed\xf4\xff";
/// Numbers at the edges of types.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "-1",
    "1e9",
    "1e300",
    "1e-300",
    "255",
    "256",
    "65535",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "9999999999999999999999999999999999",
];

/// Returns the next input: one of the seeds with a few changes.
pub fn mutate(generator: &mut Generator, seeds: &[Vec<u8>], tokens: &[&str]) -> Vec<u8> {
    let at = generator.below(seeds.len());
    let mut input = seeds.get(at).cloned().unwrap_or_default();
    // Few changes per input, because inputs close to a seed get furthest into a parser.
    for _ in 0..=generator.below(6) {
        change(generator, &mut input, seeds, tokens);
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

fn change(generator: &mut Generator, input: &mut Vec<u8>, seeds: &[Vec<u8>], tokens: &[&str]) {
    let at = generator.below(input.len() + 1);
    let end = at + generator.below(input.len() + 1 - at);
    match generator.below(11) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << generator.below(8);
            }
        }
        1 => {
            let special = SPECIAL[generator.below(SPECIAL.len())];
            match input.get_mut(at) {
                Some(byte) => *byte = special,
                None => input.push(special),
            }
        }
        2 => input.insert(at, SPECIAL[generator.below(SPECIAL.len())]),
        3 => drop(input.drain(at..end.min(at + 8))),
        4 => drop(input.drain(at..end)),
        5 => input.truncate(at),
        6 | 7 => {
            let token = tokens.get(generator.below(tokens.len())).copied().unwrap_or_default();
            splice(input, at, token.as_bytes());
        }
        8 => {
            let number = NUMBERS[generator.below(NUMBERS.len())];
            splice(input, at, number.as_bytes());
        }
        9 => {
            let piece = input[at..end].to_vec();
            for _ in 0..=generator.below(4) {
                splice(input, at, &piece);
            }
        }
        _ => {
            let other = &seeds[generator.below(seeds.len())];
            let from = generator.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
    input.truncate(MAX_INPUT_BYTES);
}

fn splice(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}
