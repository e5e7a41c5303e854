import uPlot from "uplot";
import { make } from "./elements.ts";
import { t } from "./text.ts";

const seconds = 60;

interface Moment {
  /** Priority, default, parked. */
  waiting: number[];
  /** Priority, default, scheduled. */
  running: number[];
}

/** A minute of what waited and what ran, as two charts. */
export class History {
  readonly #place: HTMLElement;
  readonly #moments: (Moment & { at: number })[] = [];
  #charts: { plot: uPlot; what: keyof Moment }[] = [];

  constructor(place: HTMLElement) {
    this.#place = place;
    new ResizeObserver(() => this.#resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.relabel());
  }

  add(moment: Moment): void {
    this.#moments.push({ ...moment, at: Date.now() });
    while ((this.#moments[0]?.at ?? Infinity) < Date.now() - (seconds + 2) * 1000) this.#moments.shift();
    for (const { plot, what } of this.#charts) plot.setData(this.#data(what));
  }

  /** Draws anew, in the language and the colours of now. */
  relabel(): void {
    for (const { plot } of this.#charts) plot.destroy();
    this.#charts = (
      [
        ["waiting", "chartWaiting", ["priority", "default", "parkedShort"]],
        ["running", "chartRunning", ["priority", "default", "scheduled"]],
      ] as const
    ).map(([what, title, names]) => ({
      what,
      plot: this.#chart(
        what,
        t(title),
        names.map((name) => t(name)),
      ),
    }));
  }

  #chart(what: keyof Moment, title: string, names: string[]): uPlot {
    const style = getComputedStyle(document.documentElement);
    // The custom properties hold light-dark(); a resolved colour must be asked from an element that has it.
    const colour = (name: string): string => {
      const probe = make("i");
      probe.style.color = `var(${name})`;
      this.#place.append(probe);
      const value = getComputedStyle(probe).color;
      probe.remove();
      return value;
    };
    const axis = {
      stroke: colour("--dim"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: `12px ${style.fontFamily}`,
    };
    const colours = [colour("--priority"), colour("--water"), colour("--parked")];
    return new uPlot(
      {
        title,
        width: this.#width(),
        height: 190,
        legend: { live: false },
        cursor: { show: false },
        scales: {
          x: { time: false, range: [-seconds, 0] },
          y: { range: (_, __, max) => [0, Math.max(4, Math.ceil(max * 1.1))] },
        },
        axes: [
          { ...axis, size: 28, values: (_, values) => values.map((value) => (value === 0 ? "0" : `${value}`)) },
          { ...axis, size: 40, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
        ],
        series: [
          { label: t("secondsAgo") },
          ...names.map((label, n) => ({ label, stroke: colours[n] ?? "grey", width: 2, points: { show: false } })),
        ],
      },
      this.#data(what),
      this.#place,
    );
  }

  #data(what: keyof Moment): uPlot.AlignedData {
    const now = Date.now();
    return [
      this.#moments.map((moment) => (moment.at - now) / 1000),
      ...[0, 1, 2].map((n) => this.#moments.map((moment) => moment[what][n] ?? 0)),
    ] as uPlot.AlignedData;
  }

  #width(): number {
    const whole = this.#place.clientWidth;
    return Math.max(240, whole > 720 ? Math.floor(whole / 2) - 12 : whole);
  }

  #resize(): void {
    const width = this.#width();
    for (const { plot } of this.#charts) if (plot.width !== width) plot.setSize({ width, height: 190 });
  }
}
