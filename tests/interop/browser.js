// Chromium for the tests of the page, and what none of them tolerates: console errors (a violated
// Content-Security-Policy is one), uncaught exceptions, requests to elsewhere.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const executable = process.env.CHROMIUM ?? '/usr/bin/chromium';
export const no_browser = existsSync(executable) ? false : `${executable} is not there (Debian: apt install chromium)`;

// Chromium refuses its sandbox to root.
export const launch = () => chromium.launch({ executablePath: executable, args: process.getuid() === 0 ? ['--no-sandbox'] : [] });

// Runs `use` with a fresh page at `url`. `expected`: console errors that belong to the test.
export async function with_page(browser, url, { expected = /^$/, prepare = () => {}, ...options }, use) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 720 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on('console', (message) => {
    if (message.type() === 'error' && !expected.test(message.text())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('request', (request) => {
    const to = request.url();
    if (to !== url && !to.startsWith(`${url}/`) && !to.startsWith('data:')) problems.push(`a request to ${to}`);
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

// Texts whose contrast with what lies behind them is below 4.5, the least that WCAG AA allows.
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

// By how many pixels the document, or any part of it that scrolls, is wider than what is seen of it.
export const overflow = (page) => page.evaluate(() => {
  const scrolls = (element) => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  const parts = [document.documentElement, ...[...document.querySelectorAll('body *')].filter(scrolls)];
  return Math.max(...parts.map((part) => part.scrollWidth - part.clientWidth));
});
