package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

// minIdle is the least time for which a connection without requests stays open.
const minIdle = 90 * time.Second

func (b *builder) addTransport() (err error) {
	b.transport = b.parts.Transport
	if closable, ok := b.transport.(io.Closer); ok {
		b.closers = append(b.closers, closable)
	}
	if b.transport != nil {
		return nil
	}
	if err := b.addProxy(); err != nil {
		return err
	}

	b.transport, err = b.newTransport()
	return err
}

// addProxy lets the transport, and the check of the control plane, connect through the proxy.
func (b *builder) addProxy() error {
	to := b.opts.ControlPlane
	if to.Proxy == "" {
		return nil
	}
	through, err := proxy.New(proxy.Options{
		Address: to.Proxy, Credentials: to.ProxyCredentials,
		// A call that ends before the dial would hide that the proxy is the reason.
		Timeout: b.opts.Outbox.ForwardTimeout / 2,
	})
	if err != nil {
		return fmt.Errorf("agent: option ControlPlane.Proxy: %w", err)
	}

	b.parts.Dial = through.DialContext
	b.log.Info("the control plane is reached through a proxy", slog.String("proxy", through.Address()))
	return nil
}

func (b *builder) newTransport() (core.Forwarder, error) {
	newest, err := b.newForwarder(b.opts.Contract)
	if err != nil || !b.opts.Contract.Numbered() {
		return newest, err
	}

	var older core.Forwarder
	if fallback := b.opts.ControlPlane.Fallback; fallback != "" {
		older, err = b.newForwarder(fallback)
		if err != nil {
			return nil, err
		}
	}

	forwarder, err := httpmtls.NewFallback(newest, older, httpmtls.FallbackOptions{
		RetryNewest: b.opts.ControlPlane.RetryNewest, Unknown: b.contractUnknown(), InUse: b.contractInUse,
	})
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return forwarder, nil
}

func (b *builder) newForwarder(version contract.Version) (core.Forwarder, error) {
	agent := "runtime-watcher"
	if b.opts.Version != "" {
		agent += "/" + b.opts.Version
	}
	forwarder, err := httpmtls.NewForwarder(b.keys.client, b.to.Address, version, httpmtls.Options{
		ServerName: b.opts.ControlPlane.ServerName,
		Protocol:   cmp.Or(b.opts.ControlPlane.Protocol, b.protocolFor(version)),
		Timeout:    b.opts.Outbox.ForwardTimeout,
		// The next heartbeat finds the connection open.
		IdleTimeout: max(minIdle, 2*b.opts.Outbox.HeartbeatInterval),
		UserAgent:   agent,
		// Nil has keep-alive probes.
		DialContext: b.parts.Dial,
		Hooks: httpmtls.Hooks{
			Connected: b.metrics.Connected, Retried: b.metrics.Retried,
			Disconnected: func(hook.Disconnection) { b.disconnects.Add(1) },
		},
		Logger: b.log,
	})
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}

	b.closers = append(b.closers, forwarder)
	return forwarder, nil
}

// protocolFor returns the version of HTTP that costs the control plane least. An idle connection of
// HTTP/1.1 takes a third less memory, but several managers need several, and so do v1 and v2.
func (b *builder) protocolFor(version contract.Version) string {
	if version == contract.V3 && len(b.managers.allManagers()) < 2 {
		return "http/1.1"
	}
	return "h2"
}

func (b *builder) contractUnknown() func(hook.UnknownContract) {
	paced := pacedlog.New(b.log, time.Minute)
	return func(unknown hook.UnknownContract) {
		b.metrics.ContractUnknown(unknown)

		// A change to the fallback has a line of its own.
		if b.opts.ControlPlane.Fallback != "" {
			return
		}
		paced.Warn("the control plane does not seem to support the contract, so the agent keeps its events: "+
			"update the listener, or set CONTRACT_FALLBACK=v2", slog.String("manager", string(unknown.Manager)),
			slog.String("contract", string(b.opts.Contract)), slog.Any("error", unknown.Err))
	}
}

func (b *builder) contractInUse(f hook.Fallback) {
	log := b.log.With(slog.String("manager", string(f.Manager)), slog.String("contract", string(b.opts.Contract)))
	if f.Older {
		b.metrics.ContractInUse(hook.ContractInUse{Manager: f.Manager, Contract: b.opts.ControlPlane.Fallback})
		log.Warn("the control plane does not support the contract: "+
			"the agent uses an older contract without heartbeats and numbers",
			slog.String("fallback", string(b.opts.ControlPlane.Fallback)),
			slog.Duration("retry", b.opts.ControlPlane.RetryNewest))
		return
	}

	b.metrics.ContractInUse(hook.ContractInUse{Manager: f.Manager, Contract: b.opts.Contract})
	log.Info("control plane supports the contract")
}

// controlPlaneCheck connects to the control plane once, and logs the result. Without pending
// events, a wrong address would not be noticed before the first change.
func (b *builder) controlPlaneCheck() component {
	return component{"check of the control plane", func(ctx context.Context) error {
		if b.parts.Transport == nil {
			b.checkControlPlane(ctx)
		}
		<-ctx.Done()
		return nil
	}}
}

func (b *builder) checkControlPlane(ctx context.Context) {
	err := connect.Dial(ctx, b.keys.client, connect.Target{
		Address: b.to.Address, ServerName: b.opts.ControlPlane.ServerName, Dial: b.parts.Dial,
	})
	address := slog.String("address", b.to.Address)
	switch {
	case err == nil:
		b.log.InfoContext(ctx, "control plane accepts the connection", address)
	case ctx.Err() == nil:
		b.log.WarnContext(ctx, "cannot connect to the control plane: the agent keeps its events and retries",
			address, slog.Any("error", err))
	}
}
