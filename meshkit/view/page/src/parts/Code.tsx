// Where the page points on: a chapter of Learn, and the code itself, as it is installed.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { boot } from "../api";
import { CHAPTERS, lessons } from "../lessons";
import { chapter, lang, mode } from "../store";
import { t } from "../strings";

const opened = signal("");

/** A button that shows a function or a class. of: "path:name", one of `meshkit/view/code.py`'s. */
export function CodeLink({ of }: { of: string }) {
  const [path, name] = of.split(":");
  return boot.code[of] && <button class="link" title={path} onClick={() => (opened.value = of)} data-code={of}><code>{name}</code></button>;
}

export function SeeAlso({ chapter: name, code }: { chapter: (typeof CHAPTERS)[number]; code: string[] }) {
  const k = CHAPTERS.indexOf(name);
  const go = (): void => {
    chapter.value = k;
    mode.value = "learn";
  };
  return (
    <dl class="see">
      <dt>{t("frame.lesson")}</dt><dd><button class="link" onClick={go}>{lessons[lang.value][k].title}</button></dd>
      <dt>{t("frame.code")}</dt><dd>{code.map((one) => <CodeLink key={one} of={one} />)}</dd>
    </dl>
  );
}

/** The window in which code is shown; one for the page. */
export function CodeWindow() {
  const box = useRef<HTMLDialogElement>(null);
  const [path, name] = opened.value.split(":");
  const code = boot.code[opened.value];
  useEffect(() => void (code && box.current!.showModal()), [code]);
  if (!code) return null;
  const lines = code.text.split("\n");
  const margin = Math.min(...lines.filter(Boolean).map((line) => line.search(/\S/)));
  return (
    <dialog ref={box} aria-label={`${path}, ${name}`} onClose={() => (opened.value = "")} onClick={(event) => event.target === box.current && box.current!.close()}>
      <header><b class="num">{path}:{code.line}</b><button class="quiet" onClick={() => box.current!.close()}>{t("frame.close")}</button></header>
      <pre tabIndex={0}>{lines.map((line, k) => <span key={k}><i>{code.line + k}</i>{line.slice(margin)}{"\n"}</span>)}</pre>
    </dialog>
  );
}
