// The frame: modes on top, controls on the left, the drawing, the inspector on the right.

import "./fonts.css";
import "./style.css";
import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { boot, fromQuery, get, ready, toQuery, type Overview } from "./api";
import { Architecture, ArchitectureInspector } from "./modes/Architecture";
import { Data, DataInspector } from "./modes/Data";
import { Learn } from "./modes/Learn";
import { Performance } from "./modes/Performance";
import { recorded, State } from "./modes/State";
import { StateInspector } from "./modes/StateInspector";
import { paintPage } from "./palette";
import { asChange } from "./parts/BestTable";
import { CodeWindow } from "./parts/Code";
import { Controls } from "./parts/Controls";
import { saveJson, savePng, saveSvg, shown } from "./parts/Drawing";
import { perfetto } from "./perfetto";
import * as store from "./store";
import { answered, canRedo, canUndo, choose, lang, mode, MODES, query, redo, sheet, theme, undo, usePart, type Mode } from "./store";
import { t, texts, why, type Key } from "./strings";

const VIEWS: Record<Mode, (props: { overview: Overview }) => preact.JSX.Element | null> = {
  architecture: Architecture, data: Data, state: State, performance: Performance, learn: Learn,
};
const INSPECTORS: Partial<typeof VIEWS> = { architecture: ArchitectureInspector, data: DataInspector, state: StateInspector };

function App() {
  const { data: overview, error, stale } = usePart("overview");
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if ((event.target as HTMLElement).closest("input, select, dialog, [role=listbox]")) return;
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
        event.preventDefault();
        (event.shiftKey ? redo : undo)();
      } else if (event.ctrlKey && event.key.toLowerCase() === "y") {
        event.preventDefault();
        redo();
      }
      if (event.key === "Escape") sheet.value = "";
      const number = Number(event.key);
      if (!event.ctrlKey && !event.metaKey && !event.altKey && MODES[number - 1]) mode.value = MODES[number - 1];
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (overview) answered.value = overview.setting;
  const View = VIEWS[mode.value];
  const Inspector = INSPECTORS[mode.value];
  return (
    <div class={`frame ${Inspector ? "" : "plain"} ${stale ? "stale" : ""}`} data-mode={mode.value} data-ready={!!overview && !stale} data-query={stale ? "" : query.value}>
      <Header />
      {mode.value !== "learn" && (
        <aside class={sheet.value === "controls" ? "open" : ""} aria-label={t("frame.controls")}>
          {overview && <Controls overview={overview} />}
        </aside>
      )}
      <main>
        {error && (
          <div class="refusal" role="alert">
            <h2>{t(error.why === "silent" ? "frame.noAnswer" : "frame.failed")}</h2>
            <p>{why(error)}</p>
            <button onClick={canUndo.value ? undo : () => choose(boot.query)}>{t(canUndo.value ? "frame.undo" : "frame.begin")}</button>
          </div>
        )}
        {overview && <View overview={overview} />}
      </main>
      {Inspector && overview && (
        <aside class={`right ${sheet.value === "inspector" ? "open" : ""}`} aria-label={t("frame.inspector")}><Inspector overview={overview} /></aside>
      )}
      <nav class="sheets">
        {mode.value !== "learn" && <button aria-pressed={sheet.value === "controls"} onClick={() => toggle("controls")}>{t("frame.controls")}</button>}
        {Inspector && <button aria-pressed={sheet.value === "inspector"} onClick={() => toggle("inspector")}>{t("frame.inspector")}</button>}
      </nav>
      <CodeWindow />
    </div>
  );
}

const toggle = (name: "controls" | "inspector"): void => void (sheet.value = sheet.value === name ? "" : name);

function Header() {
  return (
    <header>
      <h1>meshkit <span>view</span></h1>
      <nav class="modes" aria-label={t("frame.modes")}>
        {MODES.map((one, k) => (
          <button key={one} aria-current={mode.value === one ? "page" : undefined} onClick={() => (mode.value = one)} data-mode={one}>
            <kbd aria-hidden="true">{k + 1}</kbd>{t(`mode.${one}` as Key)}
          </button>
        ))}
      </nav>
      <div class="tools">
        <button class="icon" disabled={!canUndo.value} title={`${t("frame.undo")} (Ctrl Z)`} aria-label={t("frame.undo")} onClick={undo}>↶</button>
        <button class="icon" disabled={!canRedo.value} title={t("frame.redo")} aria-label={t("frame.redo")} onClick={redo}>↷</button>
        <Presets />
        <button class="quiet" lang={lang.value === "zh" ? "en" : "zh"} onClick={() => (lang.value = lang.value === "zh" ? "en" : "zh")} data-language>{t("frame.language")}</button>
        <button class="quiet" onClick={() => (theme.value = theme.value === "dark" ? "light" : "dark")} data-theme-switch>{t(theme.value === "dark" ? "frame.light" : "frame.dark")}</button>
        <Save />
      </div>
    </header>
  );
}

function Presets() {
  const { data: best, stale } = usePart("best");
  const named: Record<string, Key> = { config: "frame.own" };
  const row = stale ? undefined : best?.rows[0];
  const bestQuery = row && toQuery({ ...fromQuery(query.value), ...asChange(row) });
  const known = boot.presets.some((preset) => preset.query === query.value) || query.value === bestQuery;
  return (
    <select aria-label={t("frame.preset")} value={known ? query.value : ""} onChange={(event) => event.currentTarget.value && choose(event.currentTarget.value)} data-presets>
      {!known && <option value="">{t("frame.presetPick")}</option>}
      {boot.presets.map((preset) => <option key={preset.name} value={preset.query}>{named[preset.name] ? t(named[preset.name]) : preset.name}</option>)}
      {stale && <option value="" disabled>{t("frame.best")}: {t("frame.loading")}</option>}
      {bestQuery && !boot.presets.some((preset) => preset.query === bestQuery) && (
        <option value={bestQuery} disabled={!store.reachable(fromQuery(bestQuery))}>{t("frame.best")}</option>
      )}
    </select>
  );
}

function Save() {
  const kinds: Record<string, () => void> = {
    saveSvg, savePng,
    saveTrace: () => void get("schedule", query.value).then((table) => saveJson("meshkit-schedule.json", perfetto(table))),
    copy: () => void navigator.clipboard?.writeText(location.href),
  };
  return (
    <select aria-label={t("frame.save")} value="" onChange={(event) => {
      kinds[event.currentTarget.value]?.();
      event.currentTarget.value = "";
    }} data-save>
      <option value="">{t("frame.save")}</option>
      <option value="saveSvg" disabled={!shown.value}>{t("frame.saveSvg")}</option>
      <option value="savePng" disabled={!shown.value}>{t("frame.savePng")}</option>
      <option value="saveTrace">{t("frame.saveTrace")}</option>
      <option value="copy">{t("frame.copy")}</option>
    </select>
  );
}

await ready();
store.readUrl();
store.followUrl();
addEventListener("hashchange", store.readUrl);
paintPage();
effect(() => void (document.documentElement.lang = lang.value === "zh" ? "zh-CN" : "en"));
render(<App />, document.getElementById("app")!);

// For the tests.
const figures = signal<Overview["figures"] | null>(null);
effect(() => void get("overview", query.value).then((overview) => (figures.value = overview.figures), () => (figures.value = null)));
const settled = (): boolean =>
  store.heeded() && document.querySelector<HTMLElement>(".frame")?.dataset.query === query.value && !document.querySelector(".loading");
Object.assign(window, { meshkit: { texts, figures, settled, measured: recorded } });
