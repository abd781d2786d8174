// Runs Chromium for the page tests. Every test fails on console errors (such as a
// Content-Security-Policy violation), uncaught exceptions and requests to other hosts.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const executable = process.env.CHROMIUM ?? '/usr/bin/chromium';
export const no_browser = existsSync(executable) ? false : `${executable} not found (Debian: apt install chromium)`;

// Chromium cannot use its sandbox as root.
export const launch = () => chromium.launch({ executablePath: executable, args: process.getuid() === 0 ? ['--no-sandbox'] : [] });

// Runs `use` with a new page at `url`. `expected` matches console errors, exceptions and requests
// that the test provokes.
export async function with_page(browser, url, { expected = /^$/, prepare = () => {}, ...options }, use) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 720 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  const note = (problem) => { if (!expected.test(problem)) problems.push(problem); };
  page.on('console', (message) => { if (message.type() === 'error') note(message.text()); });
  page.on('pageerror', (error) => note(String(error)));
  page.on('request', (request) => {
    const to = request.url();
    if (to !== url && !to.startsWith(`${url}/`) && !/^(data|blob):/.test(to)) note(`a request to ${to}`);
  });
  try {
    await prepare(page, context);
    await page.goto(url);
    await use(page, context);
    assert.deepEqual(problems, []);
  } finally {
    await context.close();
  }
}

const pictures = process.env.THIMBLE_PICTURES ?? fileURLToPath(new URL('../../build/page', import.meta.url));
export function photograph(page, name, options = {}) {
  mkdirSync(pictures, { recursive: true });
  return page.screenshot({ path: `${pictures}/${name}.png`, ...options });
}

// Texts whose contrast with their background is below 4.5, the minimum of WCAG AA.
export const faint_texts = (page) => page.evaluate(() => {
  const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = (color) => channels(color).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const opaque = (color) => (channels(color)[3] ?? 1) > 0 && color !== 'transparent';
  const behind = (element) => {
    let at = element;
    while (at.parentElement && !opaque(getComputedStyle(at).backgroundColor)) at = at.parentElement;
    return getComputedStyle(at).backgroundColor;
  };
  const has_text = (element) => element.checkVisibility() && !element.disabled && element.className !== 'unseen' &&
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  return [...document.querySelectorAll('body *')].filter(has_text).map((element) => {
    const [dark, light] = [luminance(getComputedStyle(element).color), luminance(behind(element))].sort((a, b) => a - b);
    return { text: element.textContent.slice(0, 30), contrast: (light + 0.05) / (dark + 0.05) };
  }).filter(({ contrast }) => contrast < 4.5);
});

// Number of pixels by which the document, or a scrolling part of it, is wider than its visible
// area.
export const overflow = (page) => page.evaluate(() => {
  const scrolls = (element) => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  const parts = [document.documentElement, ...[...document.querySelectorAll('body *')].filter(scrolls)];
  return Math.max(...parts.map((part) => part.scrollWidth - part.clientWidth));
});
