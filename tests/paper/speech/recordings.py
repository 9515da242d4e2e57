"""Audio files as tests need them: in every format, as on the discs of WSJ, and a stand-in for the program that decodes these."""

import stat
import sys

import numpy as np

FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "float.wav": ("WAV", "FLOAT"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "sph": ("NIST", "PCM_16"),
    "ulaw.sph": ("NIST", "ULAW"),
    "aiff": ("AIFF", "PCM_16"),
}


def written(path, x, rate=16000):
    """A file in the format of its ending; Opus in parts, because libsndfile cannot take much at a time."""
    import soundfile

    form, coding = FORMATS[path.name.split(".", 1)[1]]
    with soundfile.SoundFile(path, "w", rate, 1 if x.ndim == 1 else x.shape[1], format=form, subtype=coding) as out:
        for start in range(0, len(x), 16000):
            out.write(x[start : start + 16000])
    return path


def sphere(path, x, coding="pcm", order="01", stated=None):
    """A file as on the discs of WSJ: a header of 1,024 bytes, then samples of 16 bits."""
    fields = {
        "sample_count -i": len(x) if stated is None else stated,
        "sample_rate -i": 16000,
        "channel_count -i": 1,
        "sample_n_bytes -i": 2,
        "sample_sig_bits -i": 16,
        "sample_byte_format -s2": order,
        f"sample_coding -s{len(coding)}": coding,
        "speaker_id -s3": "011",
    }
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in fields.items()), "end_head", ""]
    samples = np.round(x * 32768).astype("<i2" if order == "01" else ">i2").tobytes()
    path.write_bytes("\n".join(lines).encode().ljust(1024) + samples)
    return path


SHORTEN = "pcm,embedded-shorten-v2.00"


def noise(frames=4000, channels=1, seed=0):
    x = np.random.default_rng(seed).uniform(-0.5, 0.5, (frames, channels)).astype(np.float32)
    return x[:, 0] if channels == 1 else x


def sph2pipe(folder):
    """A program of that name in a new folder; it takes the samples of a 'compressed' file as they are."""
    folder.mkdir()
    program = folder / "sph2pipe"
    program.write_text(
        f"""#!{sys.executable}
import sys, wave
if sys.argv[1:4] != ["-p", "-f", "wav"] or len(sys.argv) != 5:
    sys.exit("sph2pipe: usage")
content = open(sys.argv[4], "rb").read()
if content[1024:] == b"broken":
    sys.exit("sph2pipe: bad shorten data\\nin this file")
with wave.open(sys.stdout.buffer, "wb") as out:
    out.setnchannels(1); out.setsampwidth(2); out.setframerate(16000)
    out.writeframes(content[1024:])
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder
