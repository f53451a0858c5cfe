// Escapes untrusted text for display: characters that reorder or hide the text around them are written out. The
// server does the same in every page it renders (core/src/visible_text.rs, the same set of characters).
const DECEPTIVE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Returns the text with its deceptive characters written out, such as \u{202e}. */
export function visible(text) {
  return String(text ?? "").replace(DECEPTIVE, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}
