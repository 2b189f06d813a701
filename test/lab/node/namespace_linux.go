package node

import (
	byteorder "encoding/binary"
	"errors"
	"fmt"
	"net"
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
		if address.Is6() {
			if err := addIPv6(address); err != nil {
				return err
			}
			continue
		}
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

// addIPv6 adds an address to the loopback interface, by a message to the kernel (rtnetlink(7)). The
// older calls know IPv4 only.
func addIPv6(address netip.Addr) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(socket) // It carried one message.

	const (
		head, body, attribute = unix.SizeofNlMsghdr, unix.SizeofIfAddrmsg, unix.SizeofRtAttr
		loopback              = 1 // the first interface of each namespace
		alone                 = 128
	)
	message := make([]byte, head+body+attribute, head+body+attribute+net.IPv6len)
	message = append(message, address.AsSlice()...)
	native := byteorder.NativeEndian
	native.PutUint32(message[0:], uint32(len(message)))
	native.PutUint16(message[4:], unix.RTM_NEWADDR)
	native.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	message[head] = unix.AF_INET6
	message[head+1] = alone
	message[head+2] = unix.IFA_F_NODAD // Else it is not usable at first.
	native.PutUint32(message[head+4:], loopback)
	native.PutUint16(message[head+body:], attribute+net.IPv6len)
	native.PutUint16(message[head+body+2:], unix.IFA_LOCAL)
	if err := unix.Sendto(socket, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("network namespace: address %s: %w", address, err)
	}

	answer := make([]byte, unix.Getpagesize())
	n, _, err := unix.Recvfrom(socket, answer, 0)
	if err != nil || n < head+4 {
		return fmt.Errorf("network namespace: address %s: answer of %d bytes: %w", address, n, err)
	}
	// It is the code of an error (NLMSG_ERROR), negative, and 0 for none.
	if code := int32(native.Uint32(answer[head:])); code != 0 {
		return fmt.Errorf("network namespace: address %s: %w", address, unix.Errno(-code))
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
