// One HTML file, everything inlined, with the digest of the source it was built from.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

const UNBUILT = new Set(["node_modules", "dist"]);

/** As meshkit/view/page_file.py: SHA-256 over names and contents, in order of names. */
function sourceDigest(folder: string): string {
  const files = (readdirSync(folder, { recursive: true, withFileTypes: true }) as import("node:fs").Dirent[])
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .filter((path) => !path.split("/").some((part) => UNBUILT.has(part)));
  const digest = createHash("sha256");
  for (const path of files.sort((a, b) => (a < b ? -1 : 1)))
    digest.update(path + "\0").update(readFileSync(join(folder, path))).update("\0");
  return digest.digest("hex");
}

const stamp: Plugin = {
  name: "stamp",
  transformIndexHtml: (html) =>
    html.replace("<meta charset", `<meta name="source-sha256" content="${sourceDigest(import.meta.dirname)}" />\n    <meta charset`),
};

export default defineConfig({
  plugins: [viteSingleFile({ removeViteModuleLoader: true }), stamp],
  build: { outDir: "../static", emptyOutDir: true, target: "es2022", assetsInlineLimit: 1e9 },
});
