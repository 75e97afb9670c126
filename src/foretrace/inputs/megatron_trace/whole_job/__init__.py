"""The whole job that traces of some ranks stand for."""
