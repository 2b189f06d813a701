package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes keep the process in its root, without rights, and end it with the thread that starts it.
func (p *pod) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Chroot: p.dir, Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: p.credential()}
}

// enterNamespace brings the thread into a new namespace; leave brings it back, and is called once.
func enterNamespace(addresses []netip.Addr) (leave func() error, err error) {
	before, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return func() error { return nil }, fmt.Errorf("network namespace: %w", err)
	}

	leave = func() error { return errors.Join(unix.Setns(int(before.Fd()), unix.CLONE_NEWNET), before.Close()) }
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return leave, fmt.Errorf("network namespace: %w", err)
	}

	return leave, furnish(addresses)
}

// furnish adds the addresses to the loopback interface of the thread's namespace.
func furnish(addresses []netip.Addr) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(socket) // It carried nothing.

	if err := configure(socket, "lo", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		return nil
	}); err != nil {
		return err
	}

	for n, address := range addresses {
		alias := fmt.Sprintf("lo:%d", n)
		err := configure(socket, alias, unix.SIOCSIFADDR,
			func(r *unix.Ifreq) error { return r.SetInet4Addr(address.AsSlice()) })
		if err == nil { // Not the whole class of the address.
			err = configure(socket, alias, unix.SIOCSIFNETMASK,
				func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 255}) })
		}

		if err != nil {
			return err
		}
	}

	return nil
}

func configure(socket int, name string, request uint, fill func(*unix.Ifreq) error) error {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = fill(r)
	}
	if err == nil {
		err = unix.IoctlIfreq(socket, request, r)
	}
	if err != nil {
		return fmt.Errorf("network namespace: interface %s: %w", name, err)
	}

	return nil
}
