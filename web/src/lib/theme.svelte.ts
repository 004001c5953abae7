/** Light or dark: the machine's wish until a person chooses. */
const KEY = 'vitrail-theme';
const wish = matchMedia('(prefers-color-scheme: dark)');

class Theme {
  dark = $state(false);

  toggle(): void {
    localStorage.setItem(KEY, this.dark ? 'light' : 'dark');
    applyTheme();
  }
}

export const theme = new Theme();

export function applyTheme(): void {
  const chosen = localStorage.getItem(KEY);
  theme.dark = chosen ? chosen === 'dark' : wish.matches;
  document.documentElement.dataset.theme = theme.dark ? 'dark' : 'light';
}

wish.addEventListener('change', applyTheme);
