// One HTML file, everything inlined, with the digest of the source it was built from.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

const UNBUILT = new Set(["node_modules", "dist"]);

const LESSONS = ["docs/learn.md", "docs/learn.zh.md"];

/** As meshkit/view/page_file.py: SHA-256 over names and contents of this folder and the lessons, in order of names. */
function sourceDigest(folder: string): string {
  const root = join(folder, "../../..");
  const files = (readdirSync(folder, { recursive: true, withFileTypes: true }) as import("node:fs").Dirent[])
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1))
    .filter((path) => !path.split("/").some((part) => UNBUILT.has(part)))
    .concat(LESSONS);
  const digest = createHash("sha256");
  for (const path of files.sort((a, b) => (a < b ? -1 : 1)))
    digest.update(path + "\0").update(readFileSync(join(root, path))).update("\0");
  return digest.digest("hex");
}

const stamp: Plugin = {
  name: "stamp",
  transformIndexHtml: (html) =>
    html.replace("<meta charset", `<meta name="source-sha256" content="${sourceDigest(import.meta.dirname)}" />\n    <meta charset`),
};

export default defineConfig({
  server: { fs: { allow: ["../../.."] } },
  plugins: [viteSingleFile({ removeViteModuleLoader: true }), stamp],
  build: { outDir: "../static", emptyOutDir: true, target: "es2022", assetsInlineLimit: 1e9 },
});
