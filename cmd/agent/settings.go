package main

import "errors"

// readSettings fails with errHelp, with errVersion, or with one error that names all mistakes.
func readSettings(args []string, env environment) (config, error) {
	c := config{resolution: resolution{env: env}}
	err := c.resolveAll(settings(&c), args)
	if errors.Is(err, errHelp) || errors.Is(err, errVersion) {
		return config{}, err
	}

	if err := errors.Join(err, c.checkCombination()); err != nil {
		return config{}, &wrongSettings{textsOf(err), c.warnings}
	}

	c.resolveProxy()
	c.warnings = append(c.warnings, c.doubts()...)
	return c, nil
}
