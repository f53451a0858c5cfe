// What both TypeScript clients need from the test.
declare const process: { env: Record<string, string | undefined>; exit(status: number): never };

/** Ends the process as failed, with a message. */
export function assert(message: string): never {
  console.error(message);
  return process.exit(1);
}

/** Returns the server's URL, the API key and the receiver's URL. */
export function environment(): { url: string; key: string; receiver: string } {
  const value = (name: string): string => process.env[name] ?? assert(`${name} is not set`);
  return { url: value("REDRIVE_URL"), key: value("REDRIVE_KEY"), receiver: value("RECEIVER_URL") };
}

/** Repeats a call until its result is the expected one. The test ends the process if that takes too long. */
export async function until<T>(call: () => Promise<T>, expected: (result: T) => boolean): Promise<T> {
  for (;;) {
    const result = await call();
    if (expected(result)) return result;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
