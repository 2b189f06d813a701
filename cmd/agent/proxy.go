package main

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

// parseProxy refuses credentials, because the log contains all settings.
func parseProxy(text string) (string, error) {
	if text == proxyDirect {
		return text, nil
	}

	parsed, err := proxy.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%w, or %s", err, proxyDirect)
	}
	if parsed.User != nil {
		return "", errors.New("has a user or a password: want them in the file CONTROL_PLANE_PROXY_CREDENTIALS")
	}
	return text, nil
}

var errCredentials = errors.New("cannot open the file: want the path of a file with user:password")

// credentialsFile stores the path of a file. Its error does not repeat a text with a colon, because
// such a text may contain the credentials.
func credentialsFile(field *string) value {
	return value{"file", func(text string) error {
		*field = text
		err := canOpen(text)
		if err != nil && strings.Contains(text, ":") {
			return errCredentials
		}
		return err
	}}
}

// resolveProxy chooses the proxy for connections to the control plane, for each transport and for
// the check. If the setting is empty, HTTPS_PROXY and NO_PROXY of the environment apply.
// Connections to the API server never use a proxy: adapters/informer and the canary ignore the
// environment.
func (c *config) resolveProxy() {
	switch c.proxy {
	case proxyDirect:
	case "":
		c.ControlPlane.Proxy = c.proxyOfEnvironment()
	default:
		c.ControlPlane.Proxy = c.proxy
	}

	if c.ControlPlane.Proxy == "" && c.ControlPlane.ProxyCredentials != "" {
		c.warnings = append(c.warnings, "CONTROL_PLANE_PROXY_CREDENTIALS is without effect, as no proxy is in use")
		c.ControlPlane.ProxyCredentials = ""
	}
}

// proxyOfEnvironment follows the usual rules for HTTPS: the names of the variables may be in lower
// case, and a proxy never serves localhost.
func (c *config) proxyOfEnvironment() string {
	value := c.env.eitherCase("HTTPS_PROXY")
	if value == "" || c.isExcluded() {
		return ""
	}

	chosen, err := proxy.ParseEnvironment(value)
	if err != nil {
		c.warnings = append(c.warnings, fmt.Sprintf(
			"HTTPS_PROXY: %v: no proxy is used, set CONTROL_PLANE_PROXY to one or to %s", err, proxyDirect))
		return ""
	}

	return chosen.String()
}

// isExcluded reports whether NO_PROXY excludes the control plane.
func (c *config) isExcluded() bool {
	address, err := connect.ParseAddress(c.to.Address)
	if err != nil {
		return true // The setting was parsed before.
	}

	if c.transport == transportNATS && address.Port() == "" {
		address.Host = net.JoinHostPort(address.Hostname(), defaultPortNATS)
	}

	anyProxy := httpproxy.Config{HTTPSProxy: "http://proxy", NoProxy: c.env.eitherCase("NO_PROXY")}
	chosen, err := anyProxy.ProxyFunc()(address)
	return err == nil && chosen == nil
}

const defaultPortNATS = "4222"
