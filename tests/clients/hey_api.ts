// Creates a webhook, publishes an event, lists its delivery and resends it, with the client of @hey-api/openapi-ts.
import { client } from "./generated/client.gen";
import { createWebhook, listAttempts, listDeliveries, publishEvent, retryDelivery, updateWebhook } from "./generated/sdk.gen";
import type { Delivery } from "./generated/types.gen";
import { assert, environment, until } from "./harness";

async function main(): Promise<void> {
  const { url, key, receiver } = environment();
  client.setConfig({ baseUrl: url, auth: key });

  const created = await createWebhook({ body: { url: receiver, events: ["order.*"] } });
  const webhook = created.data ?? assert(`created: ${JSON.stringify(created.error)}`);
  const id: string = webhook.id;

  const published = await publishEvent({ body: { event_type: "order.created", data: { order: 42 } } });
  const event = published.data ?? assert(`published: ${JSON.stringify(published.error)}`);

  const list = async (): Promise<Delivery[]> => {
    const page = await listDeliveries({ query: { webhook_id: [id], status: "delivered", limit: 10 } });
    return (page.data ?? assert(`listed: ${JSON.stringify(page.error)}`)).data;
  };
  const [delivery] = await until(list, (found) => found.length === 1);
  if (delivery?.event_id !== event.id) assert("the delivery is of the event");

  const resent = await retryDelivery({ path: { id: delivery!.id } });
  if (resent.response?.status !== 202) assert(`resent: ${JSON.stringify(resent.error)}`);
  const both = await until(list, (found) => found.length === 2);
  if (!both.some((one) => one.replay_of === delivery!.id && one.round === 2)) assert("the second round is listed");

  const attempts = await listAttempts({ query: { webhook_id: id, status: ["success", "failed"] } });
  const sent = attempts.data ?? assert(`attempts: ${JSON.stringify(attempts.error)}`);
  if (sent.data.length !== 2) assert("both attempts are listed");

  const wrong = await updateWebhook({ path: { id }, body: { max_in_flight: 0 } });
  const [first] = wrong.error?.errors ?? assert("an error was returned");
  if (first?.field !== "max_in_flight" || first.code !== "out_of_range") assert(JSON.stringify(wrong.error));
}

main().catch((error: unknown) => assert(String(error)));
