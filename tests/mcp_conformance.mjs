// Loaded before the protocol's conformance scenarios: they send the server's token, and run on
// versions of Node that have no globSync, which they need only to judge repositories.

import fs from "node:fs";
import { register } from "node:module";

const token = process.env.MCP_TOKEN;
if (token !== undefined) {
  const bare = globalThis.fetch;
  globalThis.fetch = (address, options = {}) => {
    const headers = new Headers(options.headers ?? {});
    headers.set("authorization", `Bearer ${token}`);
    return bare(address, { ...options, headers });
  };
}

if (fs.globSync === undefined) {
  const source = 'export * from "node:fs"; export const globSync = () => [];';
  const shim = "data:text/javascript," + encodeURIComponent(source);
  const hook = `export async function resolve(name, context, next) {
    const isTheirs = context.parentURL?.includes("/@modelcontextprotocol/conformance/");
    return name === "fs" && isTheirs
      ? { url: ${JSON.stringify(shim)}, shortCircuit: true }
      : next(name, context);
  }`;
  register("data:text/javascript," + encodeURIComponent(hook));
}
