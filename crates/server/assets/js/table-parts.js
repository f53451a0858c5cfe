// Columns of tables, and their names.

export const headersOf = (table) => [...(table.tHead?.rows[0]?.cells ?? [])];

/** Returns the name of a column. */
export const nameOf = (header) => (header.querySelector(".sort") ?? header).textContent.trim();

/** Returns a key that identifies tables with the same columns. */
export const keyOf = (table) => headersOf(table).map(nameOf).join("|");
